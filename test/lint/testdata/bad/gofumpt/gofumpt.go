// Package gofumpt is formatted as gofmt likes it and gofumpt does not.
package gofumpt

// One returns 1.
func One() int {

	return 1
}
