"""Faces for agent frameworks. Import the one you need: each needs its framework and nothing else.

Where a face takes ``on=``, it says where sandboxes are made: ``native`` or ``docker`` on this
machine, or the address of a server.
"""
