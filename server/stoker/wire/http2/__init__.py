"""HTTP/2 as a server speaks it (RFC 9113), without sockets: bytes in, calls of receivers and bytes out."""
