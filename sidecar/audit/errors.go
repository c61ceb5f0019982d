package audit

import "errors"

// When an event is added.
var (
	// ErrOrder says that the event is illegal after those that its job already has.
	ErrOrder = errors.New("illegal order of audit events")
	// ErrEvent says that an event cannot be written: a field is missing, too long, not UTF-8 or not JSON.
	ErrEvent = errors.New("invalid audit event")
)

// When the trail is read.
var (
	// ErrBody says that stored bytes are not a body that Encode could have written.
	ErrBody = errors.New("invalid audit body")
	// ErrTrail says that the trail was changed after it was written. Every *Fault wraps it.
	ErrTrail = errors.New("audit trail does not verify")
)
