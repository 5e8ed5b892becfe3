"""The pieces of `scan_chunks`.

    _leaves   what a chunk is made of: data and statics
    _groups   runs of consecutive chunks of one form, as rows or as stacks
    _block    the body traced once for a form, and evaluating it
    _carry    the type a carry settles on
    _shared   captured operands whose gradients add up in a wider type
    _emit     a run as a scan, as calls of one unit, or written out

`_chunks.py` puts them together.
"""
