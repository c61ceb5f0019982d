package session

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/eda-sidecar/eda-sidecar/internal/strictjson"
)

// Limits of one state. They keep a session's row, and the copy of it that every mutating job makes, small.
const (
	MaxState     = 256 << 10    // bytes of the encoded state
	MaxVars      = 256          // keys
	MaxVarsBytes = 64 << 10     // bytes of the encoded vars
	MaxArtifacts = 1024         // the oldest beyond are dropped and counted
	MaxLastData  = 16 << 10     // bytes of the encoded Data of one tool
	maxDepth     = 32           // of vars, and of the Data of one tool
	stateDepth   = 3 + maxDepth // last, tool and result lie above Data
)

// State is what a session remembers between jobs. The zero value is an empty state.
type State struct {
	Vars             map[string]any      `json:"vars"`      // JSON values; numbers are json.Number
	Artifacts        map[string]Artifact `json:"artifacts"` // by target, workspace-relative
	ArtifactsDropped int64               `json:"artifacts_dropped,omitempty"`
	Last             map[string]Last     `json:"last"` // by tool
}

// Artifact is what a committed job published at a target.
type Artifact struct {
	SHA256 string    `json:"sha256"` // hex; of a tree: of its manifest
	Bytes  int64     `json:"bytes"`
	Kind   string    `json:"kind"` // file or tree
	Job    string    `json:"job"`
	Tool   string    `json:"tool"`
	At     time.Time `json:"at"`
}

// Last is the newest committed result of one tool.
type Last struct {
	Job     string         `json:"job"`
	At      time.Time      `json:"at"`
	Code    string         `json:"code"`
	Verdict string         `json:"verdict"`
	Data    map[string]any `json:"data,omitempty"`
}

// Keys says which vars a tool may change. The zero value: none.
type Keys struct {
	Any   bool
	Names []string
}

// Delta is what one job changes.
type Delta struct {
	Patch     map[string]any      // JSON merge patch (RFC 7396) on vars: null deletes, an object merges
	Keys      Keys                // declared by the tool
	Artifacts map[string]Artifact // by target, replacing
	Tool      string
	Last      Last
}

// Clone returns a copy that shares nothing with s.
func (s State) Clone() State {
	c := State{Artifacts: maps.Clone(s.Artifacts), Last: maps.Clone(s.Last), ArtifactsDropped: s.ArtifactsDropped}
	c.Vars = cloneObject(s.Vars)
	for tool, l := range c.Last {
		l.Data = cloneObject(l.Data)
		c.Last[tool] = l
	}
	return c
}

// filled returns s with an empty map for each that is nil.
func (s State) filled() State {
	if s.Vars == nil {
		s.Vars = map[string]any{}
	}
	if s.Artifacts == nil {
		s.Artifacts = map[string]Artifact{}
	}
	if s.Last == nil {
		s.Last = map[string]Last{}
	}
	return s
}

// Apply returns the state after d; s stays as it is. The error wraps [ErrKey], [ErrLimit] or [ErrState].
func (s State) Apply(d Delta) (State, error) {
	next := s.Clone().filled()
	for _, key := range slices.Sorted(maps.Keys(d.Patch)) {
		if !d.Keys.Any && !slices.Contains(d.Keys.Names, key) {
			return State{}, fmt.Errorf("apply %q: %w", key, ErrKey)
		}
	}
	next.Vars = mergePatch(next.Vars, d.Patch)
	maps.Copy(next.Artifacts, d.Artifacts)
	next.dropOldest()
	if d.Tool != "" {
		next.Last[d.Tool] = d.Last
	}
	encoded, err := next.Encode()
	if err == nil { // what is stored must read back; and what was read shares nothing with d
		next, err = Decode(encoded)
	}
	if err != nil {
		return State{}, fmt.Errorf("apply: %w", err)
	}
	return next, nil
}

// mergePatch is MergePatch of RFC 7396 section 2 for an object patch. It owns target.
func mergePatch(target, patch map[string]any) map[string]any {
	if target == nil {
		target = map[string]any{}
	}
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(target, key)
		case map[string]any:
			old, _ := target[key].(map[string]any) // what is no object is replaced by one
			target[key] = mergePatch(old, value)
		default:
			target[key] = value
		}
	}
	return target
}

func (s *State) dropOldest() {
	beyond := len(s.Artifacts) - MaxArtifacts
	if beyond <= 0 {
		return
	}
	paths := slices.SortedFunc(maps.Keys(s.Artifacts), func(a, b string) int {
		return cmp.Or(s.Artifacts[a].At.Compare(s.Artifacts[b].At), cmp.Compare(a, b))
	})
	for _, path := range paths[:beyond] {
		delete(s.Artifacts, path)
	}
	s.ArtifactsDropped += int64(beyond)
}

// Encode returns the state as it is stored: JSON with sorted members. The error wraps [ErrLimit].
func (s State) Encode() ([]byte, error) {
	s = s.filled()
	if len(s.Vars) > MaxVars || len(s.Artifacts) > MaxArtifacts {
		return nil, fmt.Errorf("encode: %d vars, %d artifacts: %w", len(s.Vars), len(s.Artifacts), ErrLimit)
	}
	if err := bounded("vars", s.Vars, MaxVarsBytes); err != nil {
		return nil, err
	}
	for tool, l := range s.Last {
		if err := bounded("data of "+tool, l.Data, MaxLastData); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(b) > MaxState {
		return nil, fmt.Errorf("encode: %d bytes: %w", len(b), ErrLimit)
	}
	return b, nil
}

func bounded(what string, v map[string]any, limit int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", what, err)
	}
	if len(b) > limit {
		return fmt.Errorf("encode %s: %d bytes: %w", what, len(b), ErrLimit)
	}
	if err := strictjson.Check(b, maxDepth, 0); errors.Is(err, strictjson.ErrDeep) {
		return fmt.Errorf("encode %s: %w: %w", what, err, ErrLimit)
	} else if err != nil { // names that are not UTF-8 may become one: what is stored must read back
		return fmt.Errorf("encode %s: %w: %w", what, err, ErrState)
	}
	return nil
}
