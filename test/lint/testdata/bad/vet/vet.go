// Package vet has a format that does not fit its argument.
package vet

import "fmt"

// Print prints.
func Print() { fmt.Printf("%d\n", "x") }
