//go:build edamodel

package codec

// Guards that can be taken away one at a time, to show that a model fails without them.
var (
	skipBoundPublication bool // the bounds of the next phase are not published
	publishBoundLate     bool // they are published after the answer that ends a phase
	loadBeforeFirstByte  bool // the decoder reads the bounds before it waits for a message
	twoStores            bool // phase and bounds are published one after the other, in what readers hold
)
