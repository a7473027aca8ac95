"""What may be loaded: manifests, sources of models, the local store. Knows no torch module and no network. Start at manifest.py."""
