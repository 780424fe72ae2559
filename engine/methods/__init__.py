"""Attention methods: which keys a query attends, and at which positions."""
