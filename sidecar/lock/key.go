package lock

import "slices"

// Edge is one step from a directory to a name in it. Dev and Ino identify the directory (stat(2)).
type Edge struct {
	Dev, Ino uint64
	Name     string
}

// Key is what a job holds alone: a session or a path. Its zero value conflicts with nothing.
type Key struct {
	session string
	chain   []Edge
}

// Session returns the key of the session id; for a default session that has no id yet, its owner and name.
func Session(id string) Key { return Key{session: id} }

// Path returns the key of a target, as the chain of edges from the workspace's root down to it. A target with missing
// parents ends at its first missing edge. An empty chain conflicts with nothing.
func Path(chain []Edge) Key { return Key{chain: slices.Clone(chain)} }

// conflicts reports whether two jobs must not hold a and b at once: the same session, or paths of which one is the
// other or lies below it. The last edge decides: it identifies the target itself, whatever way leads there.
func (a Key) conflicts(b Key) bool {
	if a.session != "" || b.session != "" {
		return a.session == b.session
	}
	if len(a.chain) == 0 || len(b.chain) == 0 {
		return false
	}
	return slices.Contains(b.chain, a.chain[len(a.chain)-1]) || slices.Contains(a.chain, b.chain[len(b.chain)-1])
}
