package adapters

import (
	"encoding/json"
	"errors"
	"io"
)

// Bounds of a JSON output: they keep the memory of its check flat.
const (
	jsonDepth = 512      // levels
	jsonToken = 16 << 20 // bytes of one token, which the decoder holds as a whole; the longest are contents of memories
	jsonNames = 1 << 20  // bytes of all names in the outermost object
)

// jsonWalk reads one JSON value token by token. Only the names of the outermost object are kept, to find one that is there twice.
type jsonWalk struct {
	dec   *json.Decoder
	input *io.LimitedReader
	inner func(outer, name string) // called for each name in an object that is a value of the outermost one; may be nil
	names map[string]bool
	bytes int    // of names
	outer string // the last of names
}

func checkJSON(s *source, _ want) error { return walkJSON(s, nil) }

func checkYosysJSON(s *source, w want) error {
	modules, top := 0, false
	err := walkJSON(s, func(outer, name string) {
		if outer == "modules" {
			modules++
			top = top || name == w.mustContain
		}
	})
	switch {
	case err != nil:
		return err
	case modules == 0:
		return notWhole("the netlist holds no module")
	case w.mustContain != "" && !top:
		return notWhole("the netlist holds no module %q", w.mustContain)
	}
	return nil
}

// walkJSON accepts exactly one object or array, not empty, with no name of the outermost object twice.
func walkJSON(s *source, inner func(outer, name string)) error {
	input := &io.LimitedReader{R: s, N: jsonToken}
	j := &jsonWalk{dec: json.NewDecoder(input), input: input, inner: inner, names: map[string]bool{}}
	j.dec.UseNumber() // a float of 1e999 is whole
	if err := j.value(0); err != nil {
		return err
	}
	if _, err := j.dec.Token(); !errors.Is(err, io.EOF) || input.N <= 0 {
		return notWhole("bytes after the JSON value")
	}
	return nil
}

func (j *jsonWalk) token() (json.Token, error) {
	t, err := j.dec.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, notWhole("ends inside a JSON value, or one token has more than %d bytes", jsonToken)
	case err != nil:
		return nil, notWhole("JSON: %v", err)
	}
	j.input.N = jsonToken
	return t, nil
}

func (j *jsonWalk) value(depth int) error {
	open, err := j.token()
	object, array := open == json.Delim('{'), open == json.Delim('[')
	switch {
	case err != nil:
		return err
	case depth == 0 && (!object && !array || !j.dec.More()):
		return notWhole("not a JSON object or array that holds something")
	case depth > jsonDepth:
		return notWhole("JSON nests deeper than %d", jsonDepth)
	case !object && !array:
		return nil
	}
	for j.dec.More() {
		if object {
			t, err := j.token()
			if name, ok := t.(string); ok {
				err = j.member(depth, name)
			}
			if err != nil {
				return err
			}
		}
		if err := j.value(depth + 1); err != nil {
			return err
		}
	}
	_, err = j.token() // the end, of the right kind
	return err
}

// member notes the name of a member.
func (j *jsonWalk) member(depth int, name string) error {
	if depth == 1 && j.inner != nil {
		j.inner(j.outer, name)
	}
	if depth > 0 {
		return nil
	}
	j.bytes += len(name)
	if j.names[name] || j.bytes > jsonNames {
		return notWhole("JSON name %.64q is there twice, or is one too many", name)
	}
	j.names[name], j.outer = true, name
	return nil
}
