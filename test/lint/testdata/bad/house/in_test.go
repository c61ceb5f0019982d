package house

import (
	"os"
	"testing"
)

func TestFile(t *testing.T) { os.Remove("x") }
