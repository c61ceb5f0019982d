package adapters

import (
	"os"
	"testing"
)

func TestDeclaredExamples(t *testing.T) {
	for _, name := range []string{"vivado", "openroad", "constraints"} {
		text, err := os.ReadFile("../examples/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		tools, err := Declared(text)
		if err != nil {
			t.Error(err)
		}
		if _, err := NewCatalog(tools...); err != nil {
			t.Error(err)
		}
	}
}
