"""What every room uses: the op library, messages, fingerprints."""
