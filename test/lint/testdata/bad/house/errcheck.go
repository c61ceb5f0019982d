package house

import "os"

func errcheck() { os.Remove("x") }
