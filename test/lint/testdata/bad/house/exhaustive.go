package house

type color string

const (
	red  color = "red"
	blue color = "blue"
)

func exhaustive(c color) int {
	switch c {
	case red:
		return 1
	default:
		return 0
	}
}
