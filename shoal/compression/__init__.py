"""What a client sends in place of a whole model: kinds of ``local.compression``."""
