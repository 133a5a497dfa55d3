"""The gates put to the test: streams of tokens from servers whose faults are known, judged by the production code."""
