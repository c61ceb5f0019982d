package house

func simple(a, b int) bool {
	if a > b {
		return true
	}
	return false
}
