"""What the suites share: a server of their own, TAP, tokens and calls that are not what a suite is about."""
