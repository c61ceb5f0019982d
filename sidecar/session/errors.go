package session

import "errors"

// What a state or a delta can be refused for.
var (
	// ErrKey says that a tool changed a var that it does not declare.
	ErrKey = errors.New("var is not declared by the tool")
	// ErrLimit says that a state would exceed one of the limits.
	ErrLimit = errors.New("session state is over its limit")
	// ErrState says that bytes are no state, or no patch.
	ErrState = errors.New("invalid session state")
)
