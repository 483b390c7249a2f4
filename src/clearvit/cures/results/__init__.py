"""What a cure leaves behind: its report, its card, its page and its file."""
