"""What every bench is made of; `registry.py` and `stages.py` are the two files to read first.

A *workload* is a program at a few sizes, an *arm* one way of writing it. `runner.py` starts one
fresh process per sample (`sample.py`), `stages.py` says what is timed there, `values.py` compares
what the arms returned, and `records.py`, `table.py`, `plot.py`, `baseline.py` and `figures.py`
keep, show and judge the result. Nothing here knows what an arm does.
"""
