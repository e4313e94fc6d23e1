"""Engines that other projects make: clients of servers, and libraries in this process (`harness.core.engine`)."""
