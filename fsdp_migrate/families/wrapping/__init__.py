"""What a constructor and its arguments become."""
