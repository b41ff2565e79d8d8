import numpy as np
import torch
import torch.nn as nn

rng = np.random.RandomState(1)
area = rng.uniform(40, 220, size=(200, 1))
rooms = rng.randint(1, 7, size=(200, 1))
price = 1200 * area + 9000 * rooms + rng.normal(0, 5000, size=(200, 1))
X = torch.tensor(np.hstack([area, rooms]), dtype=torch.float32)
Y = torch.tensor(price / 1000, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)

torch.manual_seed(0)
model = nn.Linear(2, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(50):
    y_hat = model(X)
    loss = criterion(y_hat, Y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 5 == 0:
        print("Epoch", epoch, "loss", loss.item())
