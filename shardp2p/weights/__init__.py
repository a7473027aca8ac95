"""What may be loaded: manifests, sources of models, the local store.

Must not know torch, the network or who asks. Start reading at manifest.py, then store.py.
"""
