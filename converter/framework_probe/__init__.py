"""The script that runs in the environment of MaxText or AXLearn and says what is installed there.

`conformance` starts `probe.py` as a file of its own: it imports nothing else of ours, and nothing imports it.
"""
