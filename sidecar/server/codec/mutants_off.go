//go:build !edamodel

package codec

// Guards that a model build can take away; see mutants_on.go.
const (
	skipBoundPublication = false
	publishBoundLate     = false
	loadBeforeFirstByte  = false
	twoStores            = false
)
