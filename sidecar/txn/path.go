package txn

import (
	"io/fs"
	"slices"
	"strings"
	"unicode"
)

// reserved is the sidecar's own directory in the root of a workspace.
const reserved = ".eda-sidecar"

const (
	maxName = 255  // NAME_MAX, bytes
	maxPath = 4095 // PATH_MAX without its NUL, bytes
)

// path is a checked workspace-relative path: its components, at least one. Whether links lead elsewhere is decided at
// opening, by openat2.
type path []string

// parsePath accepts names below the workspace and outside .eda-sidecar, and says why it refuses anything else.
func parsePath(s string) (path, string) {
	if s == "." || !fs.ValidPath(s) {
		return nil, `is not a plain relative path (UTF-8, no ".", no "..", no "/" but between names)`
	}
	if len(s) > maxPath {
		return nil, "is longer than 4095 bytes"
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return nil, "contains a control character"
	}
	p := path(strings.Split(s, "/"))
	if slices.ContainsFunc(p, func(name string) bool { return len(name) > maxName }) {
		return nil, "has a component longer than 255 bytes"
	}
	if slices.Contains(p, reserved) { // also of another workspace inside of this one
		return nil, "is inside " + reserved
	}
	return p, ""
}

func (p path) String() string { return strings.Join(p, "/") }

// split returns the parent's components and the last name.
func (p path) split() (path, string) { return p[:len(p)-1], p[len(p)-1] }

// within reports whether a is b or lies below it.
func within(a, b string) bool { return a == b || strings.HasPrefix(a, b+"/") }

// plainJob reports whether s can name a job: it becomes a directory's name and part of argv.
func plainJob(s string) bool {
	if s == "" || len(s) > 64 || s[0] == '.' || s[0] == '-' || strings.HasPrefix(s, scratch) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	})
}
