"""Where an answer comes from: verified against the text, as footnotes and as a page."""
