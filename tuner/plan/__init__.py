"""What a search would do, told before it costs anything: nothing here is measured."""
