"""Streams, pages and pictures: everything that is shown or typed."""
