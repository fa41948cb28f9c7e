"""The environments of runs: what is requested, which Python they get, and the packages of a date."""
