package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/eda-sidecar/eda-sidecar/internal/strictjson"
)

// Digest returns the SHA-256 of an encoded state, in hex: what a commit event says of it.
func Digest(encoded []byte) string {
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:])
}

// Decode reads what Encode wrote, strictly: bounded, no unknown, missing or doubled member, nothing behind it.
// The error wraps [ErrState].
func Decode(encoded []byte) (State, error) {
	s, err := decode(encoded)
	if err != nil {
		return State{}, fmt.Errorf("decode state: %w: %w", ErrState, err)
	}
	return s, nil
}

func decode(encoded []byte) (s State, err error) {
	if len(encoded) > MaxState {
		return s, fmt.Errorf("%d bytes, at most %d are allowed", len(encoded), MaxState)
	}
	if err := unmarshal(encoded, &s); err != nil {
		return s, err
	}
	again, err := s.Encode()
	if err == nil && !bytes.Equal(again, encoded) { // what encoding/json passes over: names in another case, doubled, unknown
		err = errors.New("not what a state is encoded as")
	}
	return s, err
}

// DecodePatch reads a merge patch from a tool's work/_state.next.json: one strict JSON object of at most
// [MaxVarsBytes]. The error wraps [ErrState].
func DecodePatch(b []byte) (map[string]any, error) {
	patch, err := object(b, MaxVarsBytes)
	if err != nil {
		return nil, fmt.Errorf("decode patch: %w: %w", ErrState, err)
	}
	return patch, nil
}

// object reads one JSON object, with nothing behind it, in which no object has two members of one name.
func object(b []byte, limit int) (o map[string]any, err error) {
	if len(b) > limit {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(b), limit)
	}
	if err := strictjson.Check(b, stateDepth, 0); err != nil {
		return nil, err
	}
	if err := unmarshal(b, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, errors.New("not an object")
	}
	return o, nil
}

// unmarshal keeps numbers as they are written.
func unmarshal(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return dec.Decode(v)
}

func cloneObject(o map[string]any) map[string]any {
	c := maps.Clone(o)
	for key, e := range c {
		c[key] = cloneValue(e)
	}
	return c
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return cloneObject(v)
	case []any:
		c := slices.Clone(v)
		for i, e := range c {
			c[i] = cloneValue(e)
		}
		return c
	}
	return v
}
