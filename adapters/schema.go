package adapters

import (
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
)

// InputSchema is the JSON Schema of the tool's arguments, without those that are the server's own.
func (t *Tool) InputSchema() *jsonschema.Schema { return t.Arguments().Schema() }

// Schema is the JSON Schema (2020-12) of an object that Decode takes. Paths are checked there for syntax only. A new value on
// each call; the same bytes for the same parameters.
func (all Params) Schema() *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
	for _, p := range all {
		s.Properties[p.Name] = p.schema()
		s.PropertyOrder = append(s.PropertyOrder, p.Name)
		if p.Required {
			s.Required = append(s.Required, p.Name)
		}
	}
	return s
}

func (p Param) schema() *jsonschema.Schema {
	s := p.element()
	if p.List {
		s = &jsonschema.Schema{Type: "array", Items: s, MinItems: new(int(p.Min)), MaxItems: new(int(p.maxCount()))}
	}
	s.Description = p.Doc
	if p.Default != nil {
		if text, err := json.Marshal(p.Default); err == nil { // strings, lists of them, numbers and booleans encode
			s.Default = text
		}
	}
	return s
}

func (p Param) element() *jsonschema.Schema {
	switch p.Kind {
	case Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case Int:
		return &jsonschema.Schema{Type: "integer", Minimum: new(float64(p.Min)), Maximum: new(float64(p.Max))}
	case Enum:
		s := &jsonschema.Schema{Type: "string", MaxLength: new(64)}
		for _, v := range p.Enum {
			s.Enum = append(s.Enum, v)
		}
		return s
	case Text:
		return &jsonschema.Schema{Type: "string", Pattern: "^(?:" + p.Pattern + ")$", MaxLength: new(p.maxLength())}
	case Input, InputDir, Output:
		return &jsonschema.Schema{Type: "string", MinLength: new(1), MaxLength: new(1024)}
	}
	return &jsonschema.Schema{}
}

// dataSchema is the schema of a Data struct. Its types are this package's own, so an error is a mistake in it.
func dataSchema[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic("internal error: adapters: data schema: " + err.Error())
	}
	return s
}
