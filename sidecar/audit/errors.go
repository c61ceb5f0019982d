package audit

import "errors"

var (
	// ErrOrder says that the event is illegal after those that its job already has.
	ErrOrder = errors.New("illegal order of audit events")
	// ErrEvent says that an event cannot be written, or that stored bytes are none that Encode could have written: a
	// field is missing, too long, doubled, not UTF-8 or not JSON.
	ErrEvent = errors.New("invalid audit event")
	// ErrTrail says that the trail was changed after it was written. Every *Fault wraps it.
	ErrTrail = errors.New("the audit trail does not verify")
)
