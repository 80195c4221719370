"""Nodes that are kept from their work, on a devnet that is made to fail: what each surface says, and how soon."""
