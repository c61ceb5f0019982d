package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"
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
	given, err := object(encoded, MaxState)
	if err != nil {
		return s, err
	}
	dec := json.NewDecoder(bytes.NewReader(encoded))
	dec.UseNumber()
	if err := dec.Decode(&s); err != nil {
		return s, err
	}
	again, err := s.Encode()
	if err != nil {
		return s, err
	}
	// encoding/json ignores the case of names, so what it understood is compared with what was there.
	if taken, err := object(again, MaxState); err != nil || !reflect.DeepEqual(given, taken) {
		return s, errors.Join(err, errors.New("not what a state is encoded as"))
	}
	return s, nil
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

// object reads one JSON object of unique names and bounded depth, with nothing behind it.
func object(b []byte, limit int) (map[string]any, error) {
	if len(b) > limit {
		return nil, fmt.Errorf("%d bytes", len(b))
	}
	if !json.Valid(b) || !utf8.Valid(b) {
		return nil, errors.New("not one JSON value")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	v, err := value(dec, 0)
	if err != nil {
		return nil, err
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	return o, nil
}

// value reads the next value of valid JSON. encoding/json alone would take the last of two members of one name.
func value(dec *json.Decoder, depth int) (any, error) {
	t, err := dec.Token()
	if err != nil || depth > maxDepth+2 {
		return nil, errors.Join(err, errors.New("deep or cut"))
	}
	switch t {
	case json.Delim('{'):
		o := map[string]any{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key := name.(string) // the grammar has nothing else here
			if _, doubled := o[key]; doubled {
				return nil, fmt.Errorf("two members %q", key)
			}
			if o[key], err = value(dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = dec.Token()
		return o, err
	case json.Delim('['):
		a := []any{}
		for dec.More() {
			v, err := value(dec, depth+1)
			if err != nil {
				return nil, err
			}
			a = append(a, v)
		}
		_, err = dec.Token()
		return a, err
	}
	return t, nil
}

func cloneObject(o map[string]any) map[string]any {
	if o == nil {
		return nil
	}
	c, _ := cloneValue(o).(map[string]any) // a map gives a map
	return c
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for key, e := range v {
			c[key] = cloneValue(e)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, e := range v {
			c[i] = cloneValue(e)
		}
		return c
	}
	return v
}

func depth(v any) int {
	deepest := 0
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, 1+depth(e))
		}
	case []any:
		for _, e := range v {
			deepest = max(deepest, 1+depth(e))
		}
	}
	return deepest
}
