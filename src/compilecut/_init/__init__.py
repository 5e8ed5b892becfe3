"""What `stacked_init` is made of: an initialiser as sites, each distinct site compiled once.

    split ──► group ──► layout ──► programs ──► run
    _split.py _group.py _draw.py   _programs.py _run.py

* **split** cuts the flattened init at its random draws and its key arithmetic into independent
  *sites*; **keys** (`_keys.py`) is that arithmetic, done on the host.
* **group** puts sites with the same computation together.
* **layout** lays the draws of all sites out in blocks that one program fills.
* **programs** lowers and compiles one program per group, in threads.
* **run** fills block after block and calls each site's program.
"""
