"""Which heads of a model retrieve, found out with generated texts: minutes, once for a model.

A few heads vote for the passage that a question is about, most do not. Texts (`texts.py`) with many
hidden facts are read, every fact is asked for, and the votes are kept head by head
(`collecting.py`); then weights are fitted with which the right pages win (`fitting.py`), and
measured with questions that were kept out of the fit. `calibrating.py` does it all;
`models/heads.py` keeps the result beside the model's weights.

That few heads retrieve, the same ones whatever the text: Wu et al., "Retrieval Head Mechanistically
Explains Long-Context Factuality" (arXiv 2404.15574). The votes they weigh are `vote.py`'s.
"""
