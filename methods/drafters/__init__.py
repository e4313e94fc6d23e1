"""What proposes drafts; shared by methods, which never import one another."""
