"""What there is: topics, messages, deliveries, figures. Pure values and decisions."""
