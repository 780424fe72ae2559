"""How good answers are: generated tasks, baselines, and how near a method comes to dense attention.

Nothing is downloaded. A task (`tasks.py`) hides sentences of our own in a haystack
(`haystacks.py`) of any length in tokens of the model at hand (`composing.py`) and asks for them;
`grading.py` judges the answer and the evidence, `running.py` walks a grid of cells, `summary.py`
adds them up. `fidelity.py` compares a method's logits and attention with dense attention's.

The tasks follow the ideas of public suites (passkey retrieval, RULER, InfiniteBench, HELMET,
BABILong, NoLiMa) in our own words; scores are RULER-style, not scores of those suites.
"""
