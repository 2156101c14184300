"""What the user is told: the same records as text for people and as JSON for programs."""
