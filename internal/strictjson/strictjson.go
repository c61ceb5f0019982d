package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrDeep says that a document nests deeper than is allowed.
var ErrDeep = errors.New("nested too deep")

// Check returns an error unless b is one JSON value in UTF-8 with at most white space behind it, nested at most depth deep, in which no object
// has two members of one name. In objects down to depth folded, which are decoded into structs, names that differ in case alone
// are one name, as encoding/json takes both for the same field.
func Check(b []byte, depth, folded int) error {
	if !json.Valid(b) || !utf8.Valid(b) {
		return errors.New("not one JSON value in UTF-8")
	}
	// What follows relies on valid JSON. (The tokens of encoding/json would be shorter, and halve the speed of an audit verification.)
	var open []map[string]bool // the names in each open object; nil for an array
	last := byte(0)            // the structural byte before this one
	for i := 0; i < len(b); i++ {
		switch c := b[i]; c {
		case '{':
			open, last = append(open, map[string]bool{}), c
		case '[':
			open, last = append(open, nil), c
		case '}', ']':
			open, last = open[:len(open)-1], c
		case ',', ':':
			last = c
		case '"':
			start := i
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if len(open) == 0 || open[len(open)-1] == nil || last == ':' {
				continue // a value
			}
			names := open[len(open)-1]
			name, err := unquote(b[start:i+1], len(open) <= folded)
			if err != nil || names[name] {
				return errors.Join(err, fmt.Errorf("two members %q", name))
			}
			names[name] = true
		}
		if len(open) > depth {
			return ErrDeep
		}
	}
	return nil
}

// unquote decodes the name of a member.
func unquote(quoted []byte, folded bool) (name string, err error) {
	if name = string(quoted[1 : len(quoted)-1]); strings.Contains(name, `\`) {
		err = json.Unmarshal(quoted, &name)
	}
	if folded {
		name = strings.Map(fold, name)
	}
	return name, err
}

// fold returns the least of the runes that encoding/json takes for r in a name: k, K and the Kelvin sign are one.
func fold(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
