"""What methods without a server share: topologies, published similarities, and the round of one client."""
