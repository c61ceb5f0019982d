package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestListAtOnce lists one handle from many goroutines: a directory has one position for all of them.
func TestListAtOnce(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := OS().OpenRoot("test", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // opened for reading
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if names, err := OS().List("test", h, 0); err != nil || len(names) != 100 {
					t.Errorf("%d names, %v", len(names), err)
				}
			}
		})
	}
	all.Wait()
}
