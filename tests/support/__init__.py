"""Servers, a faulty network and waiting for the tests."""
