"""What scripts import that Azure's AutoML has written: its telemetry and its log. Nothing is sent to anybody."""
