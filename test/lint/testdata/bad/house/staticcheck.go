// Package house has one fault for each analyzer of houselint.
package house

import "strings"

func staticcheckTwice(s string) string { return strings.Replace(s, "a", "b", 0) }
