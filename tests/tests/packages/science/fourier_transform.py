import numpy as np
from scipy.signal import find_peaks

time = np.arange(1000) / 1000
wave = 2 * np.sin(2 * np.pi * 50 * time) + np.sin(2 * np.pi * 120 * time)
strength = np.abs(np.fft.rfft(wave)) / 500
peaks, _ = find_peaks(strength, height=0.5)
result = {"hertz": np.fft.rfftfreq(1000, 1 / 1000)[peaks], "strength": strength[peaks]}
